"""Writing rows to topics with Spark."""
