"""A plan on virtual time: the same sessions and the same rows as a measured run, without a server or sockets."""
