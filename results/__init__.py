"""The scoreboard: every row of docs/results.md, each run anew by one command.

python -m results                       # the rows and their commands
python -m results multi30k-en-de        # prepare, train every seed, measure, note the figures
"""
