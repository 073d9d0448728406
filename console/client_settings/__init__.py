"""`homebase-console client`: the settings of a coding agent that fit the limits of this server, printed or merged."""
