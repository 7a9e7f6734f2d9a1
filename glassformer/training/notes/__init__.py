"""What a run says of itself: the log on the screen and in files, and the report made of it."""
