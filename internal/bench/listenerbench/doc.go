// Package listenerbench measures the listener beside a direct connection, HAProxy and PgBouncer.
package listenerbench
