"""The command line; the module of a command is imported only when the command is run."""
