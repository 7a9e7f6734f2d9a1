"""Models written for other programs to run; what a program does not know is told in a sentence."""
