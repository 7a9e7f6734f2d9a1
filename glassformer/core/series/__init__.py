"""Parts for time series: patches and their scaling, heads and distributions."""
