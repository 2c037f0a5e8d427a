"""ZooKeeper's data model without I/O: the tree, its operations and their encoding, and the znodes that klamm keeps."""
