import java.util.Arrays;
import java.util.Locale;

/** The result that every load prints as one line of JSON: how many records in how many seconds, or how long one took. */
final class Report {
    private Report() {}

    static void rate(long records, long nanos) {
        System.out.printf(Locale.ROOT, "{\"records\": %d, \"seconds\": %.6f}%n", records, nanos / 1e9);
    }

    static void latency(long[] nanos) {
        Arrays.sort(nanos);
        System.out.printf(Locale.ROOT, "{\"p50_ms\": %.4f, \"p99_ms\": %.4f}%n", at(nanos, 0.50), at(nanos, 0.99));
    }

    private static double at(long[] sorted, double share) {
        return sorted[(int) Math.min(sorted.length - 1L, Math.round(share * sorted.length))] / 1e6;
    }
}
