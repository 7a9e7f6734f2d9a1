"""The explorer: its built page, and the export of one trace as a single file."""
