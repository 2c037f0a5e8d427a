import java.io.FileInputStream;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/**
 * Copies a topic in transactions: `java CopyTransactionally SERVERS INPUT OUTPUT NAME THREADS [PROPERTIES]`. Each thread
 * is a member of one group and has the transactional id NAME-number. Every fourth transaction is aborted after its
 * records and positions were sent. It ends when its input does; an error that a program must not survive ends it with
 * code 3. PROPERTIES is a file with settings of security.
 */
public class CopyTransactionally {
    static final Duration POLL = Duration.ofMillis(100);
    static final int RECORDS = 50;
    static final Properties security = new Properties();
    static volatile boolean stopped;
    static final AtomicLong committed = new AtomicLong();
    static final AtomicLong aborted = new AtomicLong();

    public static void main(String[] args) throws Exception {
        if (args.length > 5) try (var file = new FileInputStream(args[5])) { security.load(file); }
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(args[4]); number++) {
            String id = args[3] + "-" + number;
            Thread thread = new Thread(() -> run(args[0], args[1], args[2], id), id);
            thread.start();
            threads.add(thread);
        }
        while (System.in.read() >= 0) { }
        stopped = true;
        for (Thread thread : threads) thread.join();
        System.out.println("committed " + committed + ", aborted " + aborted);
    }

    /** A producer that is fenced in a transaction, or times out, is replaced: its successor has the same id. */
    static void run(String servers, String input, String output, String id) {
        try {
            while (!stopped) {
                try (var consumer = consumer(servers, input); var producer = producer(servers, id)) {
                    producer.initTransactions();
                    consumer.subscribe(List.of(input));
                    for (long number = 0; !stopped; number++) copy(consumer, producer, output, number % 4 == 3);
                } catch (ProducerFencedException | InvalidProducerEpochException | TimeoutException error) {
                    System.err.println(id + " begins again: " + error);
                }
            }
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(3);
        }
    }

    static KafkaConsumer<byte[], byte[]> consumer(String servers, String input) {
        return new KafkaConsumer<>(secured(Map.of("bootstrap.servers", servers, "group.id", "copy-" + input,
                "auto.offset.reset", "earliest", "enable.auto.commit", false, "isolation.level", "read_committed",
                "session.timeout.ms", 6000, "heartbeat.interval.ms", 1000, "max.poll.records", RECORDS)),
                new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static KafkaProducer<byte[], byte[]> producer(String servers, String id) {
        return new KafkaProducer<>(secured(Map.of("bootstrap.servers", servers, "transactional.id", id,
                "transaction.timeout.ms", 10000, "linger.ms", 5)), new ByteArraySerializer(), new ByteArraySerializer());
    }

    static Map<String, Object> secured(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>();
        security.forEach((key, value) -> all.put((String) key, value));
        all.putAll(settings);
        return all;
    }

    static void copy(KafkaConsumer<byte[], byte[]> consumer, KafkaProducer<byte[], byte[]> producer, String output, boolean abort) {
        ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
        if (records.isEmpty()) return;
        producer.beginTransaction();
        try {
            for (var record : records)
                producer.send(new ProducerRecord<>(output, record.partition(), record.key(), record.value()));
            Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
            for (TopicPartition tp : records.partitions()) {
                var of = records.records(tp);
                positions.put(tp, new OffsetAndMetadata(of.get(of.size() - 1).offset() + 1));
            }
            producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
            if (!abort) {
                producer.commitTransaction();
                committed.incrementAndGet();
                return;
            }
        } catch (ProducerFencedException | InvalidProducerEpochException | TimeoutException fatal) {
            throw fatal;
        } catch (KafkaException error) {
            System.err.println(Thread.currentThread().getName() + " aborts: " + error);
        }
        producer.abortTransaction();
        aborted.incrementAndGet();
        Map<TopicPartition, OffsetAndMetadata> stored = consumer.committed(consumer.assignment());
        for (TopicPartition tp : consumer.assignment()) {
            if (stored.get(tp) == null) consumer.seekToBeginning(List.of(tp));
            else consumer.seek(tp, stored.get(tp).offset());
        }
    }
}
