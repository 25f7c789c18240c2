import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.CancelCallback;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DeliverCallback;
import com.rabbitmq.client.MessageProperties;
import java.util.NavigableSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;

/**
 * RabbitMQ through its own Java client: a durable queue, persistent messages, each confirmed by the broker, with many in flight
 * at a time; consumers acknowledge automatically (the fastest mode that both offer).
 */
final class AmqpLoad {
    private static final int UNCONFIRMED_MAX = 5_000;
    private static final long PATIENCE_SECONDS = 60;
    private static final AMQP.BasicProperties PERSISTENT = MessageProperties.MINIMAL_PERSISTENT_BASIC;
    private static final CancelCallback NEVER = tag -> {};

    public static void main(String[] arguments) throws Exception {
        String verb = arguments[0], queue = arguments[2];
        int count = Integer.parseInt(arguments[3]), bytes = Integer.parseInt(arguments[4]);
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(arguments[1]);
        try (Connection connection = factory.newConnection(); Channel channel = connection.createChannel()) {
            channel.queueDeclare(queue, true, false, false, null);
            if (verb.equals("produce")) produce(channel, queue, count, bytes);
            else if (verb.equals("consume")) consume(channel, queue, count);
            else if (verb.equals("latency")) latency(channel, queue, count, bytes);
            else throw new IllegalArgumentException(verb);
        }
    }

    private static void produce(Channel channel, String queue, int count, int bytes) throws Exception {
        Semaphore room = new Semaphore(UNCONFIRMED_MAX);
        ConcurrentSkipListSet<Long> unconfirmed = new ConcurrentSkipListSet<>();
        channel.confirmSelect();
        channel.addConfirmListener(
                (tag, multiple) -> room.release(confirmed(unconfirmed, tag, multiple)),
                (tag, multiple) -> { throw new IllegalStateException("a message was refused"); });
        long started = System.nanoTime();
        for (int turn = 0; turn < count; turn++) {
            acquire(room, 1);
            unconfirmed.add(channel.getNextPublishSeqNo());
            channel.basicPublish("", queue, PERSISTENT, new byte[bytes]);
        }
        acquire(room, UNCONFIRMED_MAX);
        Report.rate(count, System.nanoTime() - started);
    }

    private static int confirmed(ConcurrentSkipListSet<Long> unconfirmed, long tag, boolean multiple) {
        if (!multiple) return unconfirmed.remove(tag) ? 1 : 0;
        NavigableSet<Long> until = unconfirmed.headSet(tag, true);
        int count = until.size();
        until.clear();
        return count;
    }

    private static void acquire(Semaphore room, int permits) throws InterruptedException {
        if (!room.tryAcquire(permits, PATIENCE_SECONDS, TimeUnit.SECONDS)) throw new IllegalStateException("no confirmation");
    }

    private static void consume(Channel channel, String queue, int count) throws Exception {
        CountDownLatch wanted = new CountDownLatch(count);
        long started = System.nanoTime();
        channel.basicConsume(queue, true, (tag, delivery) -> wanted.countDown(), NEVER);
        while (!wanted.await(PATIENCE_SECONDS, TimeUnit.SECONDS)) throw new IllegalStateException(wanted.getCount() + " are missing");
        Report.rate(count, System.nanoTime() - started);
    }

    private static void latency(Channel channel, String queue, int count, int bytes) throws Exception {
        SynchronousQueue<byte[]> arrived = new SynchronousQueue<>();
        DeliverCallback handOver = (tag, delivery) -> {
            try {
                arrived.put(delivery.getBody());
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        };
        channel.confirmSelect();
        channel.basicConsume(queue, true, handOver, NEVER);
        long[] nanos = new long[count];
        for (int turn = -count / 10; turn < count; turn++) {
            long started = System.nanoTime();
            channel.basicPublish("", queue, PERSISTENT, new byte[bytes]);
            channel.waitForConfirmsOrDie(PATIENCE_SECONDS * 1000);
            if (arrived.poll(PATIENCE_SECONDS, TimeUnit.SECONDS) == null) throw new IllegalStateException("nothing arrived");
            if (turn >= 0) nanos[turn] = System.nanoTime() - started;
        }
        Report.latency(nanos);
    }
}
