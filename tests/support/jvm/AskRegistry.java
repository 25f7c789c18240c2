import java.util.List;
import java.util.concurrent.Callable;

import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.SchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;

/**
 * Asks a schema registry by Confluent's own Java client, as Flink carries it: the URL, a subject, two versions of a schema that are
 * compatible, and a schema that is not. Prints a line for each call: its name, and the answer or the refusal's status and code.
 */
public class AskRegistry {
    public static void main(String[] arguments) throws Exception {
        String subject = arguments[1];
        AvroSchema first = new AvroSchema(arguments[2]);
        AvroSchema second = new AvroSchema(arguments[3]);
        AvroSchema other = new AvroSchema(arguments[4]);
        try (SchemaRegistryClient client = new CachedSchemaRegistryClient(arguments[0], 100)) {
            show("getAllVersions", () -> client.getAllVersions(subject));
            show("register", () -> client.register(subject, first) > 0);
            int id = client.register(subject, first);
            show("register", () -> client.register(subject, second, true) - id);
            show("register", () -> client.register(subject, other));
            client.reset(); // what it keeps of its own calls: the following ask the registry
            show("getSchemaById", () -> client.getSchemaById(id).canonicalString());
            show("getSchemaBySubjectAndId", () -> client.getSchemaBySubjectAndId(subject, id).canonicalString());
            show("getSchemaById", () -> client.getSchemaById(2000000000));
            show("getId", () -> client.getId(subject, second) - id);
            show("getVersion", () -> client.getVersion(subject, second));
            show("getVersion", () -> client.getVersion(subject, other));
            show("getAllSubjects", () -> client.getAllSubjects().contains(subject));
            show("getAllSubjectsByPrefix", () -> client.getAllSubjectsByPrefix(subject));
            show("getAllSubjectsById", () -> client.getAllSubjectsById(id).contains(subject));
            show("getAllVersionsById", () -> client.getAllVersionsById(id + 1).size());
            show("getAllVersions", () -> client.getAllVersions(subject));
            show("getLatestSchemaMetadata", () -> client.getLatestSchemaMetadata(subject).getVersion());
            show("getSchemaMetadata", () -> client.getSchemaMetadata(subject, 1).getSchema());
            show("getSchemaMetadata", () -> client.getSchemaMetadata(subject, 9).getSchema());
            show("getSchemas", () -> client.getSchemas(subject, false, true).size());
            show("testCompatibility", () -> List.of(client.testCompatibility(subject, first), client.testCompatibility(subject, other)));
            show("testCompatibilityVerbose", () -> client.testCompatibilityVerbose(subject, other).isEmpty());
            show("getCompatibility", () -> client.getCompatibility(subject));
            show("updateCompatibility", () -> client.updateCompatibility(subject, "FULL_TRANSITIVE"));
            show("updateCompatibility", () -> client.updateCompatibility(subject, "LOUD"));
            show("getConfig", () -> client.getConfig(subject).getCompatibilityLevel());
            show("deleteCompatibility", () -> {
                client.deleteCompatibility(subject);
                return "done";
            });
            show("getMode", () -> client.getMode());
            show("setMode", () -> client.setMode("READONLY", subject));
            show("getMode", () -> client.getMode(subject));
            show("register", () -> client.register(subject, new AvroSchema("\"bytes\"")));
            show("deleteMode", () -> {
                client.deleteMode(subject);
                return "done";
            });
            show("deleteSchemaVersion", () -> client.deleteSchemaVersion(subject, "1", true));
            show("deleteSchemaVersion", () -> client.deleteSchemaVersion(subject, "1"));
            show("deleteSchemaVersion", () -> client.deleteSchemaVersion(subject, "1", true));
            show("deleteSubject", () -> client.deleteSubject(subject, true));
            show("deleteSubject", () -> client.deleteSubject(subject));
            show("deleteSubject", () -> client.deleteSubject(subject, true));
            show("deleteSubject", () -> client.deleteSubject(subject));
        }
    }

    private static void show(String name, Callable<Object> call) throws Exception {
        try {
            System.out.println(name + " " + call.call());
        } catch (RestClientException refusal) {
            System.out.println(name + " refused " + refusal.getStatus() + " " + refusal.getErrorCode());
        }
    }
}
