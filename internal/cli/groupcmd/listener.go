package groupcmd

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// The queries of coterie listener show: the listener, if one exists, and all addresses at which nodes serve clients and
// each other.
const (
	listenerNames = `SELECT dns_name AS listener, port, ip_configuration_string_from_cluster AS addresses FROM sys.availability_group_listeners`
	listenerPorts = `SELECT node, address, 'clients of the group' AS serves, state, device, problem FROM coterie.addresses
UNION ALL
SELECT node_name, CASE WHEN is_ipv4 THEN ip_address ELSE '[' || ip_address || ']' END || ':' || port,
 CASE type_desc WHEN 'TSQL' THEN 'clients that write' WHEN 'TSQL_READ_ONLY' THEN 'clients that read' WHEN 'HTTP' THEN 'health checks and metrics' ELSE 'other nodes' END, state_desc, NULL, NULL
FROM sys.dm_tcp_listener_states`
)

// noListener is said where the group has no listener with a name.
const noListener = "the group has no named listener: clients use the nodes' ports; coterie listener add NAME PORT adds one"

func listenerShow() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "show", Aliases: []string{"list", "ls"}, Short: "Show the listener, its addresses, and every node's ports", Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			var results [2]console.Result
			for i, q := range []string{listenerNames, listenerPorts} {
				if results[i], err = sqlrun.Ask(c, cl, q); err != nil {
					return err
				}
			}
			if !asJSON {
				err := sqlrun.Printer{C: c, Empty: noListener}.Print(results[0])
				return errors.Join(err, sqlrun.Printer{C: c}.Print(results[1]))
			}
			names, err1 := sqlrun.Objects(results[0])
			ports, err2 := sqlrun.Objects(results[1])
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			return cli.PrintJSON(c, map[string]any{"listeners": names, "addresses": ports})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func listenerCommand() *cobra.Command {
	c := &cobra.Command{Use: "listener", GroupID: "group", Short: "Show and change the group's named client address"}
	var first, more []string
	add := alter(usage{"add NAME [PORT]", "Add the named listener", "  coterie listener add orders 1433\n  coterie listener add orders 5432 --ip 10.0.1.99/24 --ip 10.0.2.99/24 --ip fd00:1::99"}, 1, func(a []string) (string, error) {
		return listenerAdded(a, first)
	})
	add.Flags().StringSliceVar(&first, "ip", nil, "an address that the primary puts up, as 10.0.1.99/24 or fd00:1::99 (of a /64)")
	set := alter(usage{"set NAME [PORT]", "Change the listener's port, or give it another address", "  coterie listener set orders 1433\n  coterie listener set orders --add-ip 10.0.3.99/24"}, 1, func(a []string) (string, error) {
		return listenerChanged(a, more)
	})
	set.Flags().StringSliceVar(&more, "add-ip", nil, "another address, as 10.0.3.99/24 or fd00:1::99 (of a /64)")
	c.AddCommand(
		listenerShow(), add, set,
		alter(usage{"restart NAME", "Have every node open the listener's port anew, with certificate and rules as they are now; sessions go on", "  coterie listener restart orders"}, 1, func(a []string) (string, error) {
			return "RESTART LISTENER " + ddl.Literal(a[0]), nil
		}),
		alter(usage{"remove NAME", "Remove the named listener; the nodes' ports stay", "  coterie listener remove orders"}, 1, func(a []string) (string, error) {
			return "REMOVE LISTENER " + ddl.Literal(a[0]), nil
		}),
	)
	return c
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

func noPort(s string) error {
	return fail.Usagef("%q is not a port from 1 to 65535; give a number such as 5432; coterie listener show has the ports in use", s)
}

// listenerAdded returns the clause that adds a listener. a has its name and optionally its port.
func listenerAdded(a, addresses []string) (string, error) {
	var parts []string
	if len(addresses) > 0 {
		list, err := listenerAddresses(addresses)
		if err != nil {
			return "", err
		}
		parts = append(parts, "WITH IP ("+strings.Join(list, ", ")+")")
	}
	if len(a) > 1 {
		if !isPort(a[1]) {
			return "", noPort(a[1])
		}
		parts = append(parts, "PORT = "+a[1])
	}
	return "ADD LISTENER " + ddl.Literal(a[0]) + " (" + strings.Join(parts, ", ") + ")", nil
}

// listenerChanged returns the clause that changes one property of a listener. A clause changes one of them.
func listenerChanged(a, addresses []string) (string, error) {
	switch list, err := listenerAddresses(addresses); {
	case err != nil:
		return "", err
	case len(list)+len(a) != 2:
		return "", fail.Usagef("listener set changes one thing at a time: give a PORT, or one --add-ip")
	case len(list) == 1:
		return "MODIFY LISTENER " + ddl.Literal(a[0]) + " (ADD IP " + list[0] + ")", nil
	default:
		if !isPort(a[1]) {
			return "", noPort(a[1])
		}
		return "MODIFY LISTENER " + ddl.Literal(a[0]) + " (PORT = " + a[1] + ")", nil
	}
}

// listenerAddresses converts addresses with prefix lengths to the syntax of the language: with a mask, or without one
// for IPv6.
func listenerAddresses(list []string) (out []string, err error) {
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if ip, bare := netip.ParseAddr(text); err != nil && bare == nil && ip.Is6() {
			p, err = netip.PrefixFrom(ip, 64), nil
		}
		switch {
		case err != nil:
			return nil, fail.Usagef("%q is no address of a subnet; write it as 10.0.1.99/24, or as fd00:1::99", text)
		case p.Addr().Is4():
			out = append(out, "("+ddl.Literal(p.Addr().String())+", "+ddl.Literal(net.IP(net.CIDRMask(p.Bits(), 32)).String())+")")
		case p.Bits() != 64:
			return nil, fail.Usagef("%q: a listener's IPv6 address is of a /64", text)
		default:
			out = append(out, "("+ddl.Literal(p.Addr().String())+")")
		}
	}
	return out, nil
}
