"""The command line: one small file per verb, imported only when that verb is asked for."""
