"""A certificate authority for tests and small clusters. It issues certificates of brokers and clients as files."""
