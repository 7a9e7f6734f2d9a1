"""The experiments behind docs/results.md: one command reproduces each row.

python -m experiments                       # the rows and their commands
python -m experiments multi30k              # prepare, train every seed, measure, record the figures
python -m experiments multi30k --only en-de # the same for some of its runs, or one (en-de/1)
"""
