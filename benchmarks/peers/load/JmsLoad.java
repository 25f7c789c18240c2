import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;

/**
 * ActiveMQ through its own OpenWire client: a queue, persistent messages sent without waiting for each (the producer window
 * bounds what is in flight), the last one synchronously, so that all are stored when the clock stops. Latency waits for each.
 */
final class JmsLoad {
    private static final long PATIENCE_MS = 60_000;
    private static final int WINDOW_BYTES = 1 << 20;

    public static void main(String[] arguments) throws Exception {
        String verb = arguments[0];
        int count = Integer.parseInt(arguments[3]), bytes = Integer.parseInt(arguments[4]);
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(arguments[1]);
        factory.setProducerWindowSize(WINDOW_BYTES);
        factory.setWatchTopicAdvisories(false);
        try (Connection connection = factory.createConnection()) {
            connection.start();
            Session session = connection.createSession(false, Session.DUPS_OK_ACKNOWLEDGE);
            Queue queue = session.createQueue(arguments[2]);
            if (verb.equals("produce")) produce((ActiveMQConnection) connection, session, queue, count, bytes);
            else if (verb.equals("consume")) consume(session.createConsumer(queue), count);
            else if (verb.equals("latency")) latency(session, queue, count, bytes);
            else throw new IllegalArgumentException(verb);
        }
    }

    private static void produce(ActiveMQConnection connection, Session session, Queue queue, int count, int bytes) throws Exception {
        connection.setUseAsyncSend(true);
        MessageProducer producer = producer(session, queue);
        long started = System.nanoTime();
        for (int turn = 1; turn < count; turn++) producer.send(message(session, bytes));
        connection.setUseAsyncSend(false);
        producer.send(message(session, bytes));
        Report.rate(count, System.nanoTime() - started);
    }

    private static void consume(MessageConsumer consumer, int count) throws Exception {
        long started = System.nanoTime();
        for (int turn = 0; turn < count; turn++) receive(consumer);
        Report.rate(count, System.nanoTime() - started);
        consumer.close();
    }

    private static void latency(Session session, Queue queue, int count, int bytes) throws Exception {
        MessageProducer producer = producer(session, queue);
        MessageConsumer consumer = session.createConsumer(queue);
        long[] nanos = new long[count];
        for (int turn = -count / 10; turn < count; turn++) {
            long started = System.nanoTime();
            producer.send(message(session, bytes));
            receive(consumer);
            if (turn >= 0) nanos[turn] = System.nanoTime() - started;
        }
        Report.latency(nanos);
    }

    private static MessageProducer producer(Session session, Queue queue) throws Exception {
        MessageProducer producer = session.createProducer(queue);
        producer.setDeliveryMode(DeliveryMode.PERSISTENT);
        return producer;
    }

    private static BytesMessage message(Session session, int bytes) throws Exception {
        BytesMessage message = session.createBytesMessage();
        message.writeBytes(new byte[bytes]);
        return message;
    }

    private static void receive(MessageConsumer consumer) throws Exception {
        Message message = consumer.receive(PATIENCE_MS);
        if (message == null) throw new IllegalStateException("nothing arrived");
    }
}
