"""The driver: owns a journal and the rules, asks `decide`, performs what it says, records what happened."""
