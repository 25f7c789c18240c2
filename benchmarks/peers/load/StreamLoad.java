import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** RabbitMQ's stream, its log besides queues, through its own client with its defaults (batches of 100, each confirmed). */
final class StreamLoad {
    private static final long PATIENCE_SECONDS = 120;

    public static void main(String[] arguments) throws Exception {
        String verb = arguments[0], stream = "stream-" + arguments[2]; // a queue may have the name itself
        int count = Integer.parseInt(arguments[3]), bytes = Integer.parseInt(arguments[4]);
        try (Environment environment = Environment.builder().uri(arguments[1]).build()) {
            if (verb.equals("produce")) produce(environment, stream, count, bytes);
            else if (verb.equals("consume")) consume(environment, stream, count);
            else throw new IllegalArgumentException(verb);
        }
    }

    private static void produce(Environment environment, String stream, int count, int bytes) throws Exception {
        environment.streamCreator().stream(stream).create();
        CountDownLatch unconfirmed = new CountDownLatch(count);
        try (Producer producer = environment.producerBuilder().stream(stream).build()) {
            long started = System.nanoTime();
            for (int turn = 0; turn < count; turn++) {
                producer.send(producer.messageBuilder().addData(new byte[bytes]).build(), status -> {
                    if (status.isConfirmed()) unconfirmed.countDown();
                });
            }
            await(unconfirmed);
            Report.rate(count, System.nanoTime() - started);
        }
    }

    private static void consume(Environment environment, String stream, int count) throws Exception {
        CountDownLatch wanted = new CountDownLatch(count);
        long started = System.nanoTime();
        environment.consumerBuilder().stream(stream).offset(OffsetSpecification.first())
                .messageHandler((context, message) -> wanted.countDown()).build();
        await(wanted);
        Report.rate(count, System.nanoTime() - started);
    }

    private static void await(CountDownLatch latch) throws InterruptedException {
        if (!latch.await(PATIENCE_SECONDS, TimeUnit.SECONDS)) throw new IllegalStateException(latch.getCount() + " are missing");
    }
}
