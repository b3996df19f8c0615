import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;

/** What CAP's documentation shows of a Java system, and a group's queue read as a CAP service would. */
public class CapClient {
    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(args[0]);
        String exchangeName = "cap.default.router";
        String routingKey = args[1];
        byte[] messageBodyBytes = args[2].getBytes(StandardCharsets.UTF_8);
        try (Connection connection = factory.newConnection()) {
            Channel channel = connection.createChannel();
            channel.exchangeDeclare(exchangeName, "topic", true);
            Map<String, Object> lifetime = new HashMap<String, Object>();
            lifetime.put("x-message-ttl", 864000000);
            channel.queueDeclare("java.v1", true, false, false, lifetime);
            channel.queueBind("java.v1", exchangeName, args[3]);
            channel.confirmSelect();

            Map<String, Object> headers = new HashMap<String, Object>();
            headers.put("cap-msg-id", UUID.randomUUID().toString());
            headers.put("cap-msg-name", routingKey);
            headers.put("cap-callback-name", args[3]);

            channel.basicPublish(exchangeName, routingKey,
                         new AMQP.BasicProperties.Builder()
                           .headers(headers)
                           .build(),
                           messageBodyBytes);
            channel.waitForConfirmsOrDie(30_000);
            System.out.println(headers.get("cap-msg-id"));
            long deadline = System.nanoTime() + 60_000_000_000L;
            while (System.nanoTime() < deadline) {
                GetResponse answer = channel.basicGet("java.v1", true);
                if (answer != null) {
                    Map<String, Object> told = answer.getProps().getHeaders();
                    System.out.println(told.get("cap-corr-id") + " " + told.get("cap-corr-seq") + " "
                        + told.get("cap-msg-name") + " " + new String(answer.getBody(), StandardCharsets.UTF_8));
                    return;
                }
                Thread.sleep(20);
            }
            throw new IllegalStateException("no answer came");
        }
    }
}
