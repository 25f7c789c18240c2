import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs several of Kafka's command-line tools one after the other in one virtual machine, whose start takes two seconds.
 * A line of standard input is a main class and its arguments, separated by tabs; after each tool a line has its exit status.
 */
public class RunTools {
    /** Thrown instead of ending the process. Some tools catch and print even that, then end again: the first status counts. */
    private static class Ended extends Error {
        Ended() {
            super("", null, false, false);
        }

        @Override
        public String toString() {
            return "";
        }
    }

    private static Integer firstStatus;

    public static void main(String[] none) throws Exception {
        Exit.Procedure end = (status, message) -> {
            firstStatus = firstStatus == null ? status : firstStatus;
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = commands.readLine()) != null; ) {
            int status = run(line.split("\t"));
            System.err.flush();
            System.out.println("\n\u0001" + status);
            System.out.flush();
        }
        Runtime.getRuntime().halt(0); // some tools leave threads running
    }

    private static int run(String[] command) throws Exception {
        firstStatus = null;
        try {
            String[] arguments = Arrays.copyOfRange(command, 1, command.length);
            Class.forName(command[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException thrown) {
            if (thrown.getCause() instanceof Ended) {
                return firstStatus;
            }
            thrown.getCause().printStackTrace();
            return 1;
        }
    }
}
