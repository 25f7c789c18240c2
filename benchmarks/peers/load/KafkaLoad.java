import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Reading a topic, and round trips of one record at a time, with Kafka's own Java client, for any broker with its protocol. */
final class KafkaLoad {
    private static final Duration PATIENCE = Duration.ofSeconds(30);
    private static final Map<String, Object> COMMON = new HashMap<>(); // how to connect

    public static void main(String[] arguments) throws Exception {
        String verb = arguments[0], bootstrap = arguments[1], topic = arguments[2];
        int count = Integer.parseInt(arguments[3]), bytes = Integer.parseInt(arguments[4]);
        for (int given = 5; given < arguments.length; given++) {
            String[] setting = arguments[given].split("=", 2);
            COMMON.put(setting[0], setting[1]);
        }
        if (verb.equals("consume")) consume(bootstrap, topic, count);
        else if (verb.equals("latency")) latency(bootstrap, topic, count, bytes);
        else throw new IllegalArgumentException(verb);
    }

    private static void consume(String bootstrap, String topic, int count) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap)) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            consumer.position(partition); // finding the partition's leader and its beginning is not reading
            long started = System.nanoTime(), read = 0;
            while (read < count) read += poll(consumer).count();
            Report.rate(read, System.nanoTime() - started);
        }
    }

    /** Each record is sent, acknowledged and received before the next; the first tenth warms the client up and is not counted. */
    private static void latency(String bootstrap, String topic, int count, int bytes) throws Exception {
        Map<String, Object> settings = new HashMap<>(COMMON);
        settings.putAll(Map.of("bootstrap.servers", bootstrap, "acks", "1", "enable.idempotence", "false", "linger.ms", "0"));
        int uncounted = count / 10;
        long[] nanos = new long[count];
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap);
                KafkaProducer<byte[], byte[]> producer =
                        new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToEnd(List.of(partition));
            consumer.position(partition);
            for (int turn = -uncounted; turn < count; turn++) {
                long started = System.nanoTime();
                producer.send(new ProducerRecord<>(topic, new byte[bytes])).get();
                if (poll(consumer).count() != 1) throw new IllegalStateException("one record was sent");
                if (turn >= 0) nanos[turn] = System.nanoTime() - started;
            }
        }
        Report.latency(nanos);
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap) {
        Map<String, Object> settings = new HashMap<>(COMMON);
        settings.putAll(Map.of("bootstrap.servers", bootstrap, "enable.auto.commit", "false", "max.poll.records", "5000"));
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer) {
        ConsumerRecords<byte[], byte[]> records = consumer.poll(PATIENCE);
        if (records.isEmpty()) throw new IllegalStateException("nothing arrived for " + PATIENCE);
        return records;
    }
}
