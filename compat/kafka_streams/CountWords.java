import java.io.FileInputStream;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Counts words exactly once: `java CountWords SERVERS STATE_DIR INPUT OUTPUT [PROPERTIES]`. The words are the values of
 * INPUT. Each change of a count is a record of OUTPUT, so every count of a word appears there once, in order. It ends
 * when its input does; an error of a stream thread ends it with code 3. PROPERTIES is a file with settings of security.
 */
public class CountWords {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        if (args.length > 4) try (var file = new FileInputStream(args[4])) { config.load(file); }
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, "count-words");
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        config.put(StreamsConfig.STATE_DIR_CONFIG, args[1]);
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        config.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 3);
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        config.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        config.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
        config.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 1000);
        config.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 10000);
        config.put(StreamsConfig.producerPrefix("linger.ms"), 5);

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[2], Consumed.with(Serdes.String(), Serdes.String()))
                .groupBy((key, word) -> word, Grouped.<String, String>as("by-word").withKeySerde(Serdes.String()).withValueSerde(Serdes.String()))
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts").withCachingDisabled())
                .toStream()
                .to(args[3], Produced.with(Serdes.String(), Serdes.Long()));

        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            new Thread(() -> Runtime.getRuntime().halt(3)).start();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> System.out.println(now));
        streams.start();
        while (System.in.read() >= 0) { }
        streams.close(Duration.ofSeconds(30));
    }
}
