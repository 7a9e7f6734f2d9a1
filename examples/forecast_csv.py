"""Train a forecaster on a CSV file and predict its next values with quantiles.

Without a file, the script writes two years of made-up daily sales with a weekly and a yearly season.

    python examples/forecast_csv.py sales.csv --horizon 28
"""

import argparse
import csv
import math
import random
from datetime import date, timedelta
from pathlib import Path

import glassformer


def write_sales(path: Path) -> None:
    random.seed(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["date", "sales"])
        for day in range(730):
            when = date(2024, 1, 1) + timedelta(days=day)
            weekend = 30 if when.weekday() >= 5 else 0
            season = 20 * math.sin(2 * math.pi * day / 365)
            writer.writerow([when.isoformat(), round(100 + weekend + season + random.gauss(0, 5), 1)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Forecast a time series from a CSV file.")
    parser.add_argument("csv", nargs="?", help="one column of dates, one or more columns of values")
    parser.add_argument("--horizon", type=int, default=28)
    parser.add_argument("--out", default="runs/forecast")
    parser.add_argument("--max-steps", type=int, default=300)
    args = parser.parse_args()
    if args.csv is None:
        args.csv = "sales.csv"
        write_sales(Path(args.csv))

    recipe = {
        "job": "forecast",
        "data": {"train": args.csv, "context_length": 4 * args.horizon, "horizon": args.horizon},
        "model": {
            "preset": "patchtst",
            "patch_length": 7,
            "stride": 7,
            "d_model": 32,
            "num_heads": 4,
            "d_ff": 64,
            "num_layers": 2,
            "distribution": "student_t",
        },
        "training": {"max_steps": args.max_steps, "lr": 0.002, "device": "cpu"},
    }
    forecaster = glassformer.train(recipe, args.out)
    forecast = forecaster.forecast(args.csv, quantile_levels=[0.1, 0.5, 0.9])
    print(*forecast.header(), sep="\t")
    for row in forecast.formatted_rows():
        print(*row, sep="\t")


if __name__ == "__main__":
    main()
