"""The client of ZooKeeper: one connection with its own thread, sessions, watches, and a blocking form."""
