"""Aimed scenarios: a healthy cluster goes step by step through a course of events that needs one rule of brokers."""
