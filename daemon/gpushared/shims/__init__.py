"""The packet socket of the preload library: the handshake, the connections and their frames."""
