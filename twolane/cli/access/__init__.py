"""Commands for who may call a cluster: keys, certificates, and the clusters that a user names."""
