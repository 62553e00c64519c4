"""Plain Flax modules and the layers they share: arrays in, arrays out. They know no loss, mesh or batch dict."""
