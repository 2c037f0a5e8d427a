"""Reading topics with Spark: options, planning on the driver, and reading in tasks."""
