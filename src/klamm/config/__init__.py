"""Configuration of brokers and topics: keys, files, effective values, dynamic changes."""

from klamm.config.definition import Importance, Key, Support, UpdateMode
from klamm.config.kafka_config import BROKER_KEYS, KafkaConfig
from klamm.config.repository import DEFAULT_BROKER, TOPIC_DEFAULT_KEYS, ConfigRepository, validate_broker_config
from klamm.config.topic_config import effective_topic_config, validate_topic_config
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.config.values import ConfigType

__all__ = [
    "BROKER_KEYS",
    "DEFAULT_BROKER",
    "TOPIC_DEFAULT_KEYS",
    "TOPIC_KEYS",
    "ConfigRepository",
    "ConfigType",
    "Importance",
    "KafkaConfig",
    "Key",
    "Support",
    "UpdateMode",
    "effective_topic_config",
    "validate_broker_config",
    "validate_topic_config",
]
