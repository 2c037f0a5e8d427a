import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/**
 * Transactions, one scenario per line of the input: `SCENARIO NAME ...`. Each line is answered with `ok RESULT` or
 * `failed REASON`. Producers of `open` stay open, so that brokers can be stopped before `commit`.
 */
public class KlammTransactions {
    static final int PARTITIONS = 3;
    static final Duration LONG = Duration.ofSeconds(100);
    static String servers;
    static Admin admin;
    static final Map<String, KafkaProducer<String, String>> open = new HashMap<>();

    public static void main(String[] args) throws Exception {
        servers = args[0];
        admin = Admin.create(Map.of("bootstrap.servers", servers, "default.api.timeout.ms", "120000"));
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                System.out.println("ok " + run(line.split(" ")));
            } catch (Throwable error) {
                error.printStackTrace();
                System.out.println(("failed " + error).replace('\n', ' '));
            }
        }
    }

    static String run(String[] words) throws Exception {
        String name = words.length > 1 ? words[1] : "";
        return switch (words[0]) {
            case "version" -> version();
            case "epochs" -> epochs(name, Integer.parseInt(words[2]));
            case "isolation" -> isolation(name);
            case "fencing" -> fencing(name);
            case "offsets" -> offsets(name, words[2].equals("commit"));
            case "stale" -> stale(name);
            case "timeout" -> timeout(name);
            case "limit" -> limit(name);
            case "empty" -> empty(name);
            case "recover" -> recover(name);
            case "many" -> many(name, Integer.parseInt(words[2]));
            case "open" -> open(name);
            case "commit" -> commit(name, words[2]);
            case "join" -> join(name, words[2]);
            case "decide" -> decide(name, words[2].equals("commit"));
            case "turn" -> turn(name);
            case "committed" -> String.join(",", read(name, "read_committed"));
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    /** Of the client, from its jar: the class that knows it has moved between the versions. */
    static String version() throws Exception {
        Properties found = new Properties();
        try (var stream = KafkaProducer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            found.load(stream);
        }
        return found.getProperty("version");
    }

    static void check(Object expected, Object actual, String what) {
        if (!Objects.equals(expected, actual))
            throw new AssertionError(what + ": expected " + expected + ", got " + actual);
    }

    static void makeTopic(String topic, Map<String, String> configs) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 3).configs(configs))).all().get();
    }

    static KafkaProducer<String, String> producer(String id, Map<String, Object> extra) {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", servers, "transactional.id", id,
                "max.block.ms", 110000, "linger.ms", 0, "retry.backoff.ms", 20, "reconnect.backoff.ms", 20));
        // Longer than all waits of a scenario: on a slow machine no transaction may end by itself.
        config.put("transaction.timeout.ms", 600000);
        config.putAll(extra);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    static KafkaProducer<String, String> ready(String id) {
        var producer = producer(id, Map.of());
        producer.initTransactions();
        return producer;
    }

    static KafkaConsumer<String, String> consumer(String group, String isolation) {
        return new KafkaConsumer<>(Map.of("bootstrap.servers", servers, "group.id", group, "auto.offset.reset", "earliest",
                "enable.auto.commit", false, "isolation.level", isolation), new StringDeserializer(), new StringDeserializer());
    }

    static ProducerRecord<String, String> record(String topic, int partition, String value) {
        return new ProducerRecord<>(topic, partition, null, value);
    }

    static void write(KafkaProducer<String, String> producer, String topic, String value) {
        for (int partition = 0; partition < PARTITIONS; partition++)
            producer.send(record(topic, partition, value + "-" + partition));
    }

    static List<TopicPartition> partitions(String topic) {
        List<TopicPartition> found = new ArrayList<>();
        for (int partition = 0; partition < PARTITIONS; partition++) found.add(new TopicPartition(topic, partition));
        return found;
    }

    /** All records up to the end of each partition, as this isolation level sees it; sorted. */
    static List<String> read(String topic, String isolation) {
        List<String> values = new ArrayList<>();
        try (var consumer = consumer(topic + "-reader", isolation)) {
            consumer.assign(partitions(topic));
            consumer.seekToBeginning(partitions(topic));
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions(topic));
            long deadline = System.nanoTime() + LONG.toNanos();
            while (partitions(topic).stream().anyMatch(tp -> consumer.position(tp) < ends.get(tp))) {
                if (System.nanoTime() > deadline) throw new AssertionError("the end of " + topic + " was not reached");
                consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
            }
        }
        Collections.sort(values);
        return values;
    }

    /** Waits for the markers: EndTxn is answered before they are written. */
    static List<String> settled(String topic, String id) throws Exception {
        await(() -> admin.describeTransactions(List.of(id)).description(id).get().state().toString(),
                Set.of("CompleteCommit", "CompleteAbort", "Empty"), id);
        return read(topic, "read_committed");
    }

    interface Query {
        String ask() throws Exception;
    }

    static String await(Query query, Set<String> wanted, String what) throws Exception {
        long deadline = System.nanoTime() + LONG.toNanos();
        while (true) {
            String found = query.ask();
            if (wanted.contains(found)) return found;
            if (System.nanoTime() > deadline) throw new AssertionError(what + " is " + found + ", not " + wanted);
            Thread.sleep(20);
        }
    }

    interface Act {
        void run() throws Exception;
    }

    static void fails(Class<? extends Throwable> expected, String what, Act act) throws Exception {
        try {
            act.run();
        } catch (ExecutionException | KafkaException error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause())
                if (expected.isInstance(cause)) return;
            throw new AssertionError(what + ": expected " + expected.getSimpleName() + ", got " + error, error);
        }
        throw new AssertionError(what + ": no error");
    }

    /** The epochs that the partition's leader has in its log while each transaction is open. */
    static String epochs(String name, int count) throws Exception {
        makeTopic(name, Map.of());
        var tp = new TopicPartition(name, 0);
        List<String> found = new ArrayList<>();
        try (var producer = ready(name)) {
            for (int number = 0; number < count; number++) {
                producer.beginTransaction();
                producer.send(record(name, 0, "" + number)).get();
                var state = admin.describeProducers(List.of(tp)).partitionResult(tp).get().activeProducers().get(0);
                check(true, state.currentTransactionStartOffset().isPresent(), "open in the log");
                var described = admin.describeTransactions(List.of(name)).description(name).get();
                check("Ongoing", described.state().toString(), "state");
                check(Set.of(tp), described.topicPartitions(), "partitions of the transaction");
                check(state.producerEpoch(), described.producerEpoch(), "epoch of the log and of the coordinator");
                found.add("" + state.producerEpoch());
                if (number % 2 == 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
        return String.join(",", found);
    }

    static String isolation(String name) throws Exception {
        makeTopic(name, Map.of());
        List<String> committed = new ArrayList<>();
        try (var producer = ready(name)) {
            for (int number = 0; number < 6; number++) {
                producer.beginTransaction();
                write(producer, name, "" + number);
                if (number % 2 == 0) {
                    producer.commitTransaction();
                    for (int partition = 0; partition < PARTITIONS; partition++) committed.add(number + "-" + partition);
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
            check(committed, settled(name, name), "committed records");
            check(6 * PARTITIONS, read(name, "read_uncommitted").size(), "all records");
            producer.beginTransaction();
            write(producer, name, "open");
            producer.flush();
            check(committed, read(name, "read_committed"), "records before an open transaction");
            check(7 * PARTITIONS, read(name, "read_uncommitted").size(), "open records too");
            var tp = new TopicPartition(name, 0);
            var stable = new ListOffsetsOptions(org.apache.kafka.common.IsolationLevel.READ_COMMITTED);
            long lso = admin.listOffsets(Map.of(tp, OffsetSpec.latest()), stable).partitionResult(tp).get().offset();
            long end = admin.listOffsets(Map.of(tp, OffsetSpec.latest())).partitionResult(tp).get().offset();
            check(1L, end - lso, "offsets after the last stable one");
            producer.abortTransaction();
        }
        return "";
    }

    static String fencing(String name) throws Exception {
        makeTopic(name, Map.of());
        try (var first = ready(name)) {
            first.beginTransaction();
            write(first, name, "zombie");
            first.flush();
            try (var second = ready(name)) {
                fails(ProducerFencedException.class, "commit of the first producer", first::commitTransaction);
                second.beginTransaction();
                write(second, name, "alive");
                second.commitTransaction();
                fails(ProducerFencedException.class, "next transaction of the first producer", () -> {
                    first.beginTransaction();
                    first.send(record(name, 0, "zombie")).get();
                });
                check(List.of("alive-0", "alive-1", "alive-2"), settled(name, name), "records");
            }
        }
        return "";
    }

    /** Reads, processes, writes; the positions belong to the transaction. */
    static String offsets(String name, boolean commit) throws Exception {
        String target = name + "-out";
        makeTopic(name, Map.of());
        makeTopic(target, Map.of());
        var tp = new TopicPartition(name, 0);
        try (var producer = ready(name); var consumer = consumer(name, "read_committed")) {
            producer.beginTransaction();
            write(producer, name, "in");
            producer.commitTransaction();
            consumer.subscribe(List.of(name));
            int copied = 0;
            producer.beginTransaction();
            long deadline = System.nanoTime() + LONG.toNanos();
            while (copied < PARTITIONS) {
                if (System.nanoTime() > deadline) throw new AssertionError("only " + copied + " records were read");
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    producer.send(record(target, record.partition(), "out"));
                    copied++;
                }
            }
            Map<TopicPartition, OffsetAndMetadata> positions = consumer.assignment().stream()
                    .collect(Collectors.toMap(each -> each, each -> new OffsetAndMetadata(consumer.position(each))));
            producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
            if (commit) producer.commitTransaction();
            else producer.abortTransaction();
            var stored = consumer.committed(Set.of(tp)).get(tp);
            check(commit ? positions.get(tp) : null, stored, "committed position");
        }
        check(commit ? PARTITIONS : 0, settled(target, name).size(), "copied records");
        return "";
    }

    /** KIP-447: after a rebalance the positions of the former member are refused, although its producer is not fenced. */
    static String stale(String name) throws Exception {
        makeTopic(name, Map.of());
        var tp = new TopicPartition(name, 0);
        try (var producer = ready(name); var first = consumer(name, "read_committed")) {
            first.subscribe(List.of(name));
            long deadline = System.nanoTime() + LONG.toNanos();
            while (first.assignment().isEmpty()) {
                if (System.nanoTime() > deadline) throw new AssertionError("no assignment");
                first.poll(Duration.ofMillis(100));
            }
            ConsumerGroupMetadata former = first.groupMetadata();
            first.unsubscribe();
            try (var second = consumer(name, "read_committed")) {
                second.subscribe(List.of(name));
                while (second.assignment().isEmpty()) {
                    if (System.nanoTime() > deadline) throw new AssertionError("no assignment");
                    second.poll(Duration.ofMillis(100));
                }
                producer.beginTransaction();
                producer.send(record(name, 0, "x"));
                fails(CommitFailedException.class, "positions of a former member", () -> {
                    producer.sendOffsetsToTransaction(Map.of(tp, new OffsetAndMetadata(7)), former);
                    producer.commitTransaction();
                });
                producer.abortTransaction();
                producer.beginTransaction();
                producer.sendOffsetsToTransaction(Map.of(tp, new OffsetAndMetadata(1)), second.groupMetadata());
                producer.commitTransaction();
                check(1L, second.committed(Set.of(tp)).get(tp).offset(), "position of the present member");
            }
        }
        return "";
    }

    static String timeout(String name) throws Exception {
        makeTopic(name, Map.of());
        try (var producer = producer(name, Map.of("transaction.timeout.ms", 500))) {
            producer.initTransactions();
            producer.beginTransaction();
            write(producer, name, "late");
            producer.flush();
            await(() -> admin.describeTransactions(List.of(name)).description(name).get().state().toString(),
                    Set.of("CompleteAbort"), name);
            fails(KafkaException.class, "commit after the timeout", producer::commitTransaction);
        }
        try (var producer = ready(name)) {
            producer.beginTransaction();
            write(producer, name, "next");
            producer.commitTransaction();
        }
        check(List.of("next-0", "next-1", "next-2"), settled(name, name), "records");
        return "";
    }

    static String limit(String name) throws Exception {
        try (var producer = producer(name, Map.of("transaction.timeout.ms", 900001, "delivery.timeout.ms", 900002))) {
            // A bare KafkaException with the message of INVALID_TRANSACTION_TIMEOUT.
            try {
                producer.initTransactions();
            } catch (KafkaException error) {
                if (error.getMessage().contains("transaction.max.timeout.ms")) return "";
                throw error;
            }
            throw new AssertionError("a timeout above the limit was accepted");
        }
    }

    static String empty(String name) throws Exception {
        makeTopic(name, Map.of());
        try (var producer = ready(name)) {
            for (int number = 0; number < 4; number++) {
                producer.beginTransaction();
                if (number % 2 == 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
            producer.beginTransaction();
            write(producer, name, "after");
            producer.commitTransaction();
            producer.beginTransaction();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.commitTransaction();
        }
        check(List.of("after-0", "after-1", "after-2"), settled(name, name), "records");
        return "";
    }

    /** A record that the broker refuses makes the transaction abort; the producer continues after the abort. */
    static String recover(String name) throws Exception {
        makeTopic(name, Map.of("max.message.bytes", "2000"));
        try (var producer = ready(name)) {
            for (int number = 0; number < 3; number++) {
                producer.beginTransaction();
                write(producer, name, "lost");
                producer.flush(); // the client splits a batch with a large record for ever (KAFKA-8202)
                fails(RecordTooLargeException.class, "a large record", () -> {
                    producer.send(record(name, 0, "x".repeat(5000))).get();
                });
                fails(KafkaException.class, "commit after an error", producer::commitTransaction);
                producer.abortTransaction();
                producer.beginTransaction();
                write(producer, name, "" + number);
                producer.commitTransaction();
            }
        }
        check(3 * PARTITIONS, settled(name, name).size(), "records");
        return "";
    }

    /** Transactions without a pause: each begins while the markers of the one before it are being written. */
    static String many(String name, int count) throws Exception {
        makeTopic(name, Map.of());
        Set<String> committed = new TreeSet<>();
        try (var producer = ready(name)) {
            for (int number = 0; number < count; number++) {
                producer.beginTransaction();
                write(producer, name, "" + number);
                if (number % 3 == 2) producer.abortTransaction();
                else producer.commitTransaction();
                for (int partition = 0; partition < PARTITIONS && number % 3 != 2; partition++)
                    committed.add(number + "-" + partition);
            }
        }
        check(new ArrayList<>(committed), settled(name, name), "records");
        return "";
    }

    /** Leaves a transaction open and returns the broker that coordinates it. */
    static String open(String name) throws Exception {
        if (!admin.listTopics().names().get().contains(name)) makeTopic(name, Map.of());
        if (!open.containsKey(name)) {
            // The scenarios stop and start brokers meanwhile.
            open.put(name, producer(name, Map.of("transaction.timeout.ms", 600000)));
            open.get(name).initTransactions();
        }
        var producer = open.get(name);
        producer.beginTransaction();
        write(producer, name, "before");
        producer.flush();
        return "" + admin.describeTransactions(List.of(name)).description(name).get().coordinatorId();
    }

    /** Writes more in the open transaction and commits it. `close`: the producer ends then. */
    static String commit(String name, String end) throws Exception {
        var producer = open.get(name);
        write(producer, name, "after");
        producer.commitTransaction();
        if (end.equals("close")) open.remove(name).close();
        settled(name, name);
        return "";
    }

    /** Writes to another topic in the open transaction. */
    static String join(String name, String topic) {
        write(open.get(name), topic, "joined");
        open.get(name).flush();
        return "";
    }

    /** Commits or aborts the open transaction and does not wait for the markers. */
    static String decide(String name, boolean commit) {
        if (commit) open.get(name).commitTransaction();
        else open.get(name).abortTransaction();
        return "";
    }

    /** One more transaction of an open producer, repeated while it is aborted. Returns the aborts and the epoch. */
    static String turn(String name) throws Exception {
        var producer = open.get(name);
        for (int aborts = 0; aborts < 5; aborts++) {
            producer.beginTransaction();
            try {
                write(producer, name, "turn");
                producer.flush();
                long epoch = admin.describeTransactions(List.of(name)).description(name).get().producerEpoch();
                producer.commitTransaction();
                settled(name, name);
                return aborts + " " + epoch;
            } catch (KafkaException error) {
                System.err.println("aborting: " + error);
                producer.abortTransaction();
            }
        }
        throw new AssertionError("five transactions were aborted");
    }
}
