"""What decode rates and waits are to be expected, if streams were other than they are. Imports no MLX."""
