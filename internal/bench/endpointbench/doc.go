// Package endpointbench measures the link between replicas beside plain TCP and ssh, over emulated links.
package endpointbench
