"""Level 2 with senders that must be refused.

With an authorizer, an intruder sends requests that only brokers, or other clients, may send. Without one, brokers prove
their id, and impostors without that proof send the requests of brokers.
"""
