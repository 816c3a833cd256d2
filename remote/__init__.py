"""Everything that crosses a machine boundary: hosts, jobs that outlive a connection, verified transfer, the fleet."""
