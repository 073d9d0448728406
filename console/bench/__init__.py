"""`homebase-console bench`: experiments with the model on this machine, told as a table, a plot and files."""
