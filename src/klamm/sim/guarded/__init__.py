"""Level 2 with an authorizer: an intruder sends requests that only brokers, or other clients, may send."""
