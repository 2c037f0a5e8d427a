// Produce and consume ten records with Apache Kafka's Java client: java -cp 'libs/*' WithJavaClient.java localhost:9092

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class WithJavaClient {
    private static final String TOPIC = "greetings-java";
    private static final int COUNT = 10;

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        try (var admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.createTopics(List.of(new NewTopic(TOPIC, 3, (short) 1))).all().get();
        }
        Map<String, Object> forProducer = Map.of("bootstrap.servers", servers, "acks", "all");
        try (var producer = new KafkaProducer<>(forProducer, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < COUNT; number++) {
                producer.send(new ProducerRecord<>(TOPIC, Integer.toString(number), "hello " + number)).get();
            }
        }
        Map<String, Object> forConsumer =
            Map.of("bootstrap.servers", servers, "group.id", TOPIC, "auto.offset.reset", "earliest");
        var received = new TreeSet<String>();
        try (var consumer = new KafkaConsumer<>(forConsumer, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(TOPIC));
            long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
            while (received.size() < COUNT) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("Received only " + received + " within 60 s.");
                }
                consumer.poll(Duration.ofSeconds(1)).forEach(record -> received.add(record.value()));
            }
            consumer.commitSync();
        }
        received.forEach(System.out::println);
    }
}
