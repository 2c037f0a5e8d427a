"""Aimed scenarios: a healthy cluster is led step by step through events that exercise one rule of brokers."""
