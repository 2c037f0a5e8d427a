"""Clusters on this machine: `LocalCluster`, its processes, ports and settings. `klamm up` and tests use it."""
