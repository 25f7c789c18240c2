"""The broker's settings, under Kafka's names: declared once, read from files, shown to admin tools."""
