import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.*;

/**
 * One scenario per run: `java KlammClient.java SERVERS SCENARIO NAME`. It prints `ok` or dies with the reason.
 * `-Dklamm.client=FILE` names a properties file with the settings of security, which every client of the run gets.
 */
public class KlammClient {
    static final Map<String, Object> common = new HashMap<>();

    public static void main(String[] args) throws Exception {
        String file = System.getProperty("klamm.client");
        if (file != null) {
            Properties read = new Properties();
            try (Reader reader = Files.newBufferedReader(Path.of(file))) {
                read.load(reader);
            }
            read.stringPropertyNames().forEach(key -> common.put(key, read.getProperty(key)));
        }
        common.put("bootstrap.servers", args[0]);
        String name = args[2];
        switch (args[1]) {
            case "codecs" -> codecs(name);
            case "shapes" -> shapes(name);
            case "times" -> times(name);
            case "rebalance" -> rebalance(name);
            case "commit" -> commit(name);
            case "resume" -> resume(name);
            case "admin" -> admin(name);
            case "config" -> config(name);
            case "groups" -> groups(name);
            case "quotas" -> quotas(name);
            default -> throw new IllegalArgumentException(args[1]);
        }
        System.out.println("ok");
    }

    static void check(Object expected, Object actual, String what) {
        if (!Objects.equals(expected, actual))
            throw new AssertionError(what + ": expected " + expected + ", got " + actual);
    }

    static Map<String, Object> with(Map<String, Object> own) {
        Map<String, Object> config = new HashMap<>(common);
        config.putAll(own);
        return config;
    }

    static Admin admin() {
        return Admin.create(with(Map.of("default.api.timeout.ms", "120000")));
    }

    static void makeTopic(String topic, int partitions, Map<String, String> configs) throws Exception {
        try (Admin admin = admin()) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(configs))).all().get();
        }
    }

    static KafkaProducer<byte[], byte[]> producer(Map<String, Object> extra) {
        Map<String, Object> config = with(Map.of("delivery.timeout.ms", 120000));
        config.putAll(extra);
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group, Map<String, Object> extra) {
        Map<String, Object> config =
                with(Map.of("group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", false));
        config.putAll(extra);
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static List<ConsumerRecord<byte[], byte[]>> take(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> out = new ArrayList<>();
        long deadline = System.nanoTime() + 200_000_000_000L;
        while (out.size() < count && System.nanoTime() < deadline)
            consumer.poll(Duration.ofMillis(500)).forEach(out::add);
        check(count, out.size(), "records read");
        return out;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] value) {
        return value == null ? null : new String(value, StandardCharsets.UTF_8);
    }

    /** The default producer is idempotent with acks=all, so each codec shows that as well. */
    static void codecs(String name) throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            String topic = name + "-" + codec;
            makeTopic(topic, 1, Map.of());
            try (var producer = producer(Map.of("compression.type", codec, "linger.ms", 20))) {
                for (int n = 0; n < 300; n++)
                    producer.send(new ProducerRecord<>(topic, bytes(n + "-payload".repeat(20))));
                producer.flush();
            }
            try (var consumer = consumer(name + codec, Map.of())) {
                consumer.subscribe(List.of(topic));
                var records = take(consumer, 300);
                for (int n = 0; n < 300; n++) {
                    check((long) n, records.get(n).offset(), codec + " offset");
                    check(n + "-payload".repeat(20), text(records.get(n).value()), codec + " value");
                }
            }
        }
    }

    static void shapes(String name) throws Exception {
        makeTopic(name, 1, Map.of());
        try (var producer = producer(Map.of())) {
            producer.send(new ProducerRecord<>(name, bytes("gone"), null)).get();
            producer.send(new ProducerRecord<>(name, new byte[0], new byte[0])).get();
            var headers = List.<org.apache.kafka.common.header.Header>of(
                    new RecordHeader("h", bytes("1")), new RecordHeader("h", bytes("2")), new RecordHeader("n", null));
            producer.send(new ProducerRecord<byte[], byte[]>(name, 0, null, null, bytes("v"), headers)).get();
        }
        try (var consumer = consumer(name, Map.of())) {
            consumer.assign(List.of(new TopicPartition(name, 0)));
            var records = take(consumer, 3);
            check(null, records.get(0).value(), "null value");
            check("gone", text(records.get(0).key()), "key of a tombstone");
            check("", text(records.get(1).value()), "empty value");
            check("", text(records.get(1).key()), "empty key");
            check(null, records.get(2).key(), "null key");
            var headers = records.get(2).headers().toArray();
            check(3, headers.length, "headers");
            check("2", text(headers[1].value()), "second header");
            check(null, headers[2].value(), "null header");
        }
    }

    static void times(String name) throws Exception {
        makeTopic(name, 1, Map.of());
        makeTopic(name + "-append", 1, Map.of("message.timestamp.type", "LogAppendTime"));
        long now = System.currentTimeMillis();
        try (var producer = producer(Map.of("linger.ms", 0))) {
            for (int n = 0; n < 10; n++)
                producer.send(new ProducerRecord<>(name, 0, now - 10_000 + n * 1000, null, bytes("x"))).get();
            var metadata = producer.send(new ProducerRecord<>(name + "-append", 0, 1000L, null, bytes("x"))).get();
            if (metadata.timestamp() < now) throw new AssertionError("LogAppendTime " + metadata.timestamp());
        }
        TopicPartition tp = new TopicPartition(name, 0);
        try (var consumer = consumer(name, Map.of()); Admin admin = admin()) {
            check(5L, consumer.offsetsForTimes(Map.of(tp, now - 5_500)).get(tp).offset(), "offset by time");
            var appended = new TopicPartition(name + "-append", 0);
            consumer.assign(List.of(appended));
            check(TimestampType.LOG_APPEND_TIME, take(consumer, 1).get(0).timestampType(), "timestamp type");
            check(9L, admin.listOffsets(Map.of(tp, OffsetSpec.maxTimestamp())).partitionResult(tp).get().offset(), "max");
            check(10L, admin.listOffsets(Map.of(tp, OffsetSpec.latest())).partitionResult(tp).get().offset(), "latest");
        }
    }

    static void rebalance(String name) throws Exception {
        makeTopic(name, 4, Map.of());
        for (String assignor : List.of("RangeAssignor", "CooperativeStickyAssignor")) {
            Map<String, Object> extra = Map.of("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor);
            try (var first = consumer(name + assignor, extra); var second = consumer(name + assignor, extra)) {
                first.subscribe(List.of(name));
                second.subscribe(List.of(name));
                long deadline = System.nanoTime() + 200_000_000_000L;
                while (!(first.assignment().size() == 2 && second.assignment().size() == 2)) {
                    if (System.nanoTime() > deadline) throw new AssertionError(assignor + " never settled");
                    first.poll(Duration.ofMillis(50));
                    second.poll(Duration.ofMillis(50));
                }
                Set<TopicPartition> all = new HashSet<>(first.assignment());
                all.addAll(second.assignment());
                check(4, all.size(), "partitions owned");
            }
        }
    }

    static void commit(String name) throws Exception {
        makeTopic(name, 1, Map.of());
        try (var producer = producer(Map.of("max.in.flight.requests.per.connection", 5))) {
            for (int n = 0; n < 10; n++) producer.send(new ProducerRecord<>(name, bytes("" + n)));
        }
        try (var consumer = consumer(name, Map.of("max.poll.records", 4))) {
            consumer.subscribe(List.of(name));
            take(consumer, 4);
            consumer.commitSync();
        }
    }

    /** Runs after the broker was restarted: the fifth record comes first. */
    static void resume(String name) throws Exception {
        try (var consumer = consumer(name, Map.of())) {
            consumer.subscribe(List.of(name));
            check("4", text(take(consumer, 6).get(0).value()), "first record after the restart");
        }
    }

    static <E extends Throwable> void fails(Class<E> expected, String what, Callable call) throws Exception {
        try {
            call.call();
        } catch (ExecutionException error) {
            check(expected, error.getCause().getClass(), what);
            return;
        }
        throw new AssertionError(what + ": no error");
    }

    interface Callable {
        void call() throws Exception;
    }

    static void admin(String name) throws Exception {
        try (Admin admin = admin()) {
            var created = admin.createTopics(List.of(new NewTopic(name, 2, (short) 1)));
            check(2, created.numPartitions(name).get(), "partitions of a new topic");
            fails(TopicExistsException.class, "second creation", () -> makeTopic(name, 1, Map.of()));
            fails(InvalidReplicationFactorException.class, "five replicas",
                    () -> admin.createTopics(List.of(new NewTopic(name + "5", 1, (short) 5))).all().get());
            fails(InvalidTopicException.class, "bad name",
                    () -> admin.createTopics(List.of(new NewTopic("a b", 1, (short) 1))).all().get());
            fails(InvalidConfigurationException.class, "bad config",
                    () -> makeTopic(name + "bad", 1, Map.of("retention.ms", "soon")));
            var options = new CreateTopicsOptions().validateOnly(true);
            admin.createTopics(List.of(new NewTopic(name + "dry", 1, (short) 1)), options).all().get();
            check(false, admin.listTopics().names().get().contains(name + "dry"), "validate-only creates");
            admin.createPartitions(Map.of(name, NewPartitions.increaseTo(4))).all().get();
            var described = admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
            check(4, described.partitions().size(), "partitions after growth");
            var byId = admin.describeTopics(org.apache.kafka.common.TopicCollection.ofTopicIds(List.of(described.topicId())));
            check(name, byId.allTopicIds().get().get(described.topicId()).name(), "topic by id");
            try (var producer = producer(Map.of())) {
                for (int n = 0; n < 10; n++) producer.send(new ProducerRecord<>(name, 0, null, bytes("x"))).get();
            }
            var tp = new TopicPartition(name, 0);
            var deleted = admin.deleteRecords(Map.of(tp, RecordsToDelete.beforeOffset(6)));
            check(6L, deleted.lowWatermarks().get(tp).get().lowWatermark(), "low watermark");
            var producers = admin.describeProducers(List.of(tp)).partitionResult(tp).get();
            check(1, producers.activeProducers().size(), "active producers");
            var cluster = admin.describeCluster();
            check(1, cluster.nodes().get().size(), "nodes");
            int broker = cluster.controller().get().id();
            var dirs = admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker);
            boolean sized = dirs.values().stream().anyMatch(d -> d.replicaInfos().containsKey(tp) && d.replicaInfos().get(tp).size() > 0);
            check(true, sized, "log dir knows the partition's size");
            admin.deleteTopics(List.of(name)).all().get();
            check(false, admin.listTopics().names().get().contains(name), "deleted topic is listed");
        }
    }

    static void config(String name) throws Exception {
        makeTopic(name, 1, Map.of("retention.ms", "4321"));
        var topic = new ConfigResource(ConfigResource.Type.TOPIC, name);
        try (Admin admin = admin()) {
            var before = admin.describeConfigs(List.of(topic)).all().get().get(topic);
            check("4321", before.get("retention.ms").value(), "retention.ms");
            check(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, before.get("retention.ms").source(), "source");
            check(ConfigEntry.ConfigType.LONG, before.get("retention.ms").type(), "type");
            check(ConfigEntry.ConfigSource.DEFAULT_CONFIG, before.get("segment.bytes").source(), "default source");
            admin.incrementalAlterConfigs(Map.of(topic, List.of(
                    new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND),
                    new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE)))).all().get();
            var after = admin.describeConfigs(List.of(topic)).all().get().get(topic);
            check(Set.of("compact", "delete"), Set.of(after.get("cleanup.policy").value().split(",")), "policy");
            check("604800000", after.get("retention.ms").value(), "default again");
            int id = admin.describeCluster().controller().get().id();
            var broker = new ConfigResource(ConfigResource.Type.BROKER, "" + id);
            admin.incrementalAlterConfigs(Map.of(broker, List.of(
                    new AlterConfigOp(new ConfigEntry("num.io.threads", "12"), AlterConfigOp.OpType.SET)))).all().get();
            check("12", admin.describeConfigs(List.of(broker)).all().get().get(broker).get("num.io.threads").value(), "io threads");
            fails(InvalidRequestException.class, "read-only broker config", () -> admin.incrementalAlterConfigs(Map.of(broker,
                    List.of(new AlterConfigOp(new ConfigEntry("broker.id", "7"), AlterConfigOp.OpType.SET)))).all().get());
            admin.incrementalAlterConfigs(Map.of(broker, List.of(
                    new AlterConfigOp(new ConfigEntry("num.io.threads", ""), AlterConfigOp.OpType.DELETE)))).all().get();
        }
    }

    /** Sets and shows quotas, then is throttled as a producer and refused as an admin. */
    static void quotas(String name) throws Exception {
        makeTopic(name, 1, Map.of());
        var client = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, name));
        Map<String, String> defaults = new HashMap<>();
        defaults.put(ClientQuotaEntity.USER, name);
        defaults.put(ClientQuotaEntity.CLIENT_ID, null);
        var both = new ClientQuotaEntity(defaults);
        var ofClient = ClientQuotaFilter.containsOnly(List.of(ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.CLIENT_ID, name)));
        var ofUser = ClientQuotaFilter.contains(List.of(ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.USER, name)));
        try (Admin admin = admin()) {
            admin.alterClientQuotas(List.of(
                    new ClientQuotaAlteration(client, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1000.0),
                            new ClientQuotaAlteration.Op("controller_mutation_rate", 0.5))),
                    new ClientQuotaAlteration(both, List.of(new ClientQuotaAlteration.Op("request_percentage", 12.5))))).all().get();
            check(Map.of(client, Map.of("producer_byte_rate", 1000.0, "controller_mutation_rate", 0.5)),
                    admin.describeClientQuotas(ofClient).entities().get(), "quotas of the client id");
            check(Map.of(both, Map.of("request_percentage", 12.5)), admin.describeClientQuotas(ofUser).entities().get(), "of the user");
            fails(InvalidRequestException.class, "an unknown quota", () -> admin.alterClientQuotas(List.of(
                    new ClientQuotaAlteration(client, List.of(new ClientQuotaAlteration.Op("unknown", 1.0))))).all().get());
        }
        try (var producer = producer(Map.of("client.id", name))) {
            for (int n = 0; n < 2; n++) producer.send(new ProducerRecord<>(name, 0, null, new byte[10000])).get();
            var longest = producer.metrics().values().stream()
                    .filter(each -> each.metricName().name().equals("produce-throttle-time-max")).findFirst().orElseThrow();
            check(true, (double) longest.metricValue() > 0, "the producer was throttled");
        }
        try (Admin admin = Admin.create(with(Map.of("client.id", name)))) {
            var options = new CreateTopicsOptions().retryOnQuotaViolation(false);
            admin.createTopics(List.of(new NewTopic(name + "-many", 20, (short) 1)), options).all().get();
            fails(ThrottlingQuotaExceededException.class, "topics beyond the quota", () -> admin.createTopics(
                    List.of(new NewTopic(name + "-more", 1, (short) 1)), options).all().get());
        }
        try (Admin admin = admin()) {
            admin.alterClientQuotas(List.of(
                    new ClientQuotaAlteration(client, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", null),
                            new ClientQuotaAlteration.Op("controller_mutation_rate", null))),
                    new ClientQuotaAlteration(both, List.of(new ClientQuotaAlteration.Op("request_percentage", null))))).all().get();
            check(Map.of(), admin.describeClientQuotas(ofClient).entities().get(), "no quotas are left");
        }
    }

    static void groups(String name) throws Exception {
        makeTopic(name, 2, Map.of());
        try (var producer = producer(Map.of())) {
            for (int n = 0; n < 10; n++) producer.send(new ProducerRecord<>(name, n % 2, null, bytes("x")));
        }
        try (Admin admin = admin(); var consumer = consumer(name, Map.of("group.instance.id", "one"))) {
            consumer.subscribe(List.of(name));
            take(consumer, 10);
            consumer.commitSync();
            var described = admin.describeConsumerGroups(List.of(name)).all().get().get(name);
            check("Stable", described.groupState().toString(), "state");
            check(Optional.of("one"), described.members().iterator().next().groupInstanceId(), "static member");
            fails(GroupNotEmptyException.class, "deletion of a live group", () -> admin.deleteConsumerGroups(List.of(name)).all().get());
            admin.removeMembersFromConsumerGroup(name, new RemoveMembersFromConsumerGroupOptions(
                    List.of(new MemberToRemove("one")))).all().get();
            var tp = new TopicPartition(name, 0);
            admin.alterConsumerGroupOffsets(name, Map.of(tp, new OffsetAndMetadata(2))).all().get();
            check(2L, admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get().get(tp).offset(), "offset");
            admin.deleteConsumerGroupOffsets(name, Set.of(tp)).all().get();
            check(false, admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get().containsKey(tp), "deleted");
            boolean listed = admin.listGroups().all().get().stream().anyMatch(g -> g.groupId().equals(name));
            check(true, listed, "listed");
            admin.deleteConsumerGroups(List.of(name)).all().get();
        }
    }
}
