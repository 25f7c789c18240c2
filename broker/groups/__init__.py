"""Consumer groups: today the offsets that consumers commit; membership is not offered yet."""
