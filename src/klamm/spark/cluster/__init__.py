"""Sessions, Python workers and standalone clusters: the environment that Spark runs klamm in."""
