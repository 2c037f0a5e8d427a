"""Client quotas at work (KIP-13, KIP-124, KIP-219, KIP-599): rates, accounts of clients, throttle times, storage."""
