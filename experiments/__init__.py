"""The scoreboard: every row of docs/results.md, each run anew by one command.

python -m experiments                       # the rows and their commands
python -m experiments multi30k              # prepare, train every seed, measure, note the figures
python -m experiments multi30k --only en-de # the same for some of its runs, or one (en-de/1)
"""
