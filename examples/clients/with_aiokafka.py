"""Produce and consume ten records with aiokafka: `python with_aiokafka.py localhost:9092`."""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

TOPIC = "greetings-aiokafka"
COUNT = 10


async def main(servers: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, num_partitions=3, replication_factor=1)])
    await admin.close()

    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
        for number in range(COUNT):
            await producer.send_and_wait(TOPIC, key=str(number).encode(), value=f"hello {number}".encode())

    consumer = AIOKafkaConsumer(
        TOPIC, bootstrap_servers=servers, group_id=TOPIC, auto_offset_reset="earliest", enable_auto_commit=False
    )
    received: list[str] = []
    async with consumer, asyncio.timeout(60):
        async for record in consumer:
            received.append(record.value.decode())
            if len(received) == COUNT:
                break
        await consumer.commit()
    print("\n".join(sorted(received)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
