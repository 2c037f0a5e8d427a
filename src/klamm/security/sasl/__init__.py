"""SASL: the exchanges of PLAIN, SCRAM, OAUTHBEARER and KLAMM-PEER for both sides, and what they need."""
