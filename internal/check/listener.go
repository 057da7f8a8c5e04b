package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/api"
)

// findListener compares the group's named listener with the addresses that the nodes hold, and with DNS, which Coterie
// does not change.
func findListener(ctx context.Context, cl *api.Client, lookup func(context.Context, string) ([]string, error)) ([]Finding, error) {
	names, err := rowsOf(ctx, cl, "SELECT dns_name FROM sys.availability_group_listeners")
	if err != nil {
		return nil, err
	}
	held, err := rowsOf(ctx, cl, "SELECT ip_address, state_desc FROM sys.availability_group_listener_ip_addresses")
	if err != nil {
		return nil, err
	}
	problems, err := rowsOf(ctx, cl, "SELECT node, address, problem FROM coterie.addresses WHERE state = 'FAILED' ORDER BY node, address")
	if err != nil {
		return nil, err
	}
	why, err := rowsOf(ctx, cl, "SELECT problem FROM coterie.addresses WHERE state = 'OFFLINE' AND problem <> ''")
	if err != nil {
		return nil, err
	}
	out := append(judgePlaces(problems), judgeOffline(held, column(why))...)
	for _, r := range names {
		out = append(out, judgeListenerName(ctx, fmt.Sprint(r[0]), column(held), lookup)...)
	}
	return out, nil
}

func column(rows [][]any) (out []string) {
	for _, r := range rows {
		out = append(out, fmt.Sprint(r[0]))
	}
	return out
}

// judgePlaces returns findings for the addresses and ports that a node should serve and does not. They are rows of
// node, address and problem.
func judgePlaces(rows [][]any) (out []Finding) {
	for _, r := range rows {
		what, run, _ := strings.Cut(fmt.Sprint(r[2]), "; ")
		out = append(out, Finding{
			Level: Problem, What: fmt.Sprintf("%v does not serve %v of the listener: %s", r[0], r[1], what),
			Why: "clients that know no other address do not reach the group", Run: run,
		})
	}
	return out
}

// judgeOffline returns a finding if none of the listener's addresses, as rows of address and state, is up on any node,
// although no node failed. It is normal that some are not up if the nodes are in different subnets.
func judgeOffline(held [][]any, why []string) []Finding {
	for _, r := range held {
		if r[1] != "OFFLINE" {
			return nil // judgePlaces reports the failure
		}
	}
	if len(held) == 0 || len(why) == 0 { // without a reason, no primary exists that could hold them
		return nil
	}
	return []Finding{{
		Level: Problem, What: "no address of the listener is up: " + strings.Join(why, "; "),
		Why: "clients that know no other address do not reach the group",
		Run: "give the listener an address in a subnet of the primary: MODIFY LISTENER … (ADD IP …)",
	}}
}

// judgeListenerName looks the name up. It should resolve to the listener's addresses, all of them and no others.
func judgeListenerName(ctx context.Context, name string, addresses []string, lookup func(context.Context, string) ([]string, error)) []Finding {
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	found, err := lookup(ctx, name)
	f := Finding{Level: Warning, Why: "clients that use the name do not reach the group by it; Coterie writes nothing to DNS"}
	switch {
	case err != nil:
		f.What, f.Run = fmt.Sprintf("the listener's name %s has no address here: %v", name, err), "give it in DNS "+orNodes(addresses)
	case len(addresses) == 0:
		return nil // the owner of the name chooses the nodes that it resolves to
	default:
		var missing, odd []string
		for _, a := range addresses {
			if !slices.Contains(found, a) {
				missing = append(missing, a)
			}
		}
		for _, a := range found {
			if !slices.Contains(addresses, a) {
				odd = append(odd, a)
			}
		}
		if missing == nil && odd == nil {
			return nil
		}
		f.What = fmt.Sprintf("the listener's name %s leads to %s, and the listener is at %s", name, strings.Join(found, ", "), strings.Join(addresses, ", "))
		f.Run = "give it in DNS " + orNodes(addresses)
	}
	return []Finding{f}
}

func orNodes(addresses []string) string {
	if len(addresses) == 0 {
		return "the addresses of the group's nodes"
	}
	return "the addresses " + strings.Join(addresses, ", ")
}
