package main

import (
	"bytes"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestInputs holds what is answered to commands as people type them on a machine without a node: the exit code, and
// words that say what happened and what to run. No answer has words of the language that the program is written in.
func TestInputs(t *testing.T) {
	none := t.TempDir() + "/none"
	systemd := regexp.MustCompile(`systemctl [a-z]+ coterie`)
	for typed, want := range map[string]struct {
		code int
		says string
	}{
		"stauts":                    {2, `unknown command "stauts": did you mean coterie status`},
		"failvoer --to n2":          {2, "did you mean coterie failover"},
		"ststus":                    {2, "did you mean coterie status"},
		"chekc":                     {2, "did you mean coterie check"},
		"replcia show":              {2, "did you mean coterie replica"},
		"jion x":                    {2, "did you mean coterie join"},
		"switchover":                {2, "coterie failover --to NAME is a planned failover"},
		"swichover":                 {2, "coterie failover --to NAME is a planned failover"},
		"replica reinnit":           {2, "coterie replica seed NAME --full"},
		"switchover --to n2":        {2, "coterie failover --to NAME is a planned failover"},
		"list":                      {2, "coterie member list its members"},
		"topology":                  {2, "coterie status shows the members"},
		"members":                   {2, "coterie member list"},
		"reinit n2":                 {2, "coterie replica seed NAME --full makes a replica's copy anew"},
		"pause":                     {2, "coterie maintenance on"},
		"reload":                    {2, "coterie listener restart"},
		"history":                   {2, "coterie.timelines"},
		"help nosuch":               {2, `unknown command "nosuch"; see coterie --help`},
		"help replica nosuch":       {2, `unknown command "nosuch"`},
		"help patronictl":           {2, "unknown command"},
		"show-config":               {2, "coterie group show"},
		"edit-config":               {2, "coterie settings"},
		"dsn":                       {2, "under Connect"},
		"psql":                      {2, "under Connect"},
		"promote":                   {2, "coterie failover --to NAME"},
		"suspend n2":                {2, "coterie replica resume NAME continues"},
		"logs":                      {2, "log/agent.log"},
		"version":                   {2, "coterie --version"},
		"add n4":                    {2, "coterie member add-token"},
		"stop":                      {2, "systemctl stop coterie"},
		"nonsense":                  {2, `unknown command "nonsense"; see coterie --help`},
		"replica sho":               {2, "did you mean coterie replica set"},
		"replica frobnicate":        {2, "see coterie replica --help"},
		"token creat":               {2, "did you mean coterie token create"},
		"memebr list":               {2, "did you mean coterie member"},
		"member lsit":               {2, "did you mean coterie member list"},
		"member add n4":             {2, "coterie member add-token, then coterie join TOKEN"},
		"member remove":             {2, "coterie member remove needs the member's name"},
		"member remove n2 n3":       {2, "does not know what to do with \"n3\""},
		"member replace":            {2, "coterie member replace needs the member's name"},
		"member replace n3 --ttl 1": {2, "is not a duration"},
		"failover --to n2 --to n3":  {2, "--to is given twice; nothing was done: give it once"},
		"failover --to= --dry-run":  {2, "--to has an empty name; nothing was changed"},
		"failover to n2":            {2, "coterie failover --to n2"},
		"failover --drain 10s --to n2 --drain 20s":              {2, "--drain is given twice"},
		"sql -c x --command y":                                  {2, "--command is given twice"},
		"routing set --when-primary a --list b --list c":        {2, "--list is given twice"},
		"listener add l 1433 --ip 10.0.0.1/24 --ip 10.0.1.1/24": {2, "there is no node directory"},
		"status --json --json":                                  {2, "there is no node directory"},
		"member add-token --role witness --role replica":        {2, "--role is given twice"},
		"member leave":            {2, "coterie leave, on the member itself"},
		"member delete n3":        {2, "coterie member remove NAME"},
		"member list extra":       {2, "does not know what to do with"},
		"replica promote n2":      {2, "coterie failover --to NAME"},
		"replica resmue n2":       {2, "did you mean coterie replica resume"},
		"replica reinit n2":       {2, "coterie replica seed NAME --full"},
		"replica resume":          {2, "coterie replica resume needs the replica's name"},
		"group status":            {2, "coterie status"},
		"group delete orders":     {2, "coterie destroy, on each node"},
		"group failover":          {2, "coterie failover --to NAME"},
		"group set commit_rule":   {2, "is not OPTION=VALUE"},
		"database create shop":    {2, "coterie database add NAME"},
		"database drop shop":      {2, "DROP DATABASE in psql"},
		"cluster show":            {2, "coterie status shows the group"},
		"failback":                {2, "coterie failover --to NAME"},
		"demote n1":               {2, "coterie failover --to NAME"},
		"rejoin n2":               {2, "coterie replica resume NAME"},
		"clone n2":                {2, "coterie join TOKEN copies the data"},
		"delete n3":               {2, "coterie member remove NAME"},
		"wipe":                    {2, "coterie destroy"},
		"replace n3":              {2, "coterie member replace NAME"},
		"evict n3":                {2, "coterie member remove NAME"},
		"doctor":                  {2, "coterie check"},
		"events":                  {2, "coterie explain --all"},
		"quorum":                  {2, "coterie member list"},
		"destory":                 {2, "did you mean coterie destroy"},
		"destroy":                 {2, "there is no node directory"},
		"destroy --force --yes":   {2, "there is no node directory"},
		"destroy orders":          {2, `does not know what to do with "orders"`},
		"leave --keep-data":       {2, "flag needs an argument: --keep-data"},
		"lab strt n1":             {2, "did you mean coterie lab start"},
		"status extra":            {2, `does not know what to do with "extra"`},
		"status":                  {2, "there is no node directory"},
		"status --wid":            {2, "unknown flag: --wid"},
		"check nosucharea":        {2, "choose from"},
		"failover n3":             {2, "coterie failover needs no arguments; name the replica as in coterie failover --to n3"},
		"failover --force":        {2, "a planned failover asks nothing"},
		"failover --candidate n2": {2, "named with --to NAME"},
		"status --format yaml":    {2, "--json prints JSON"},
		"restart --pending":       {2, "coterie restart --postgres --pending"},
		"restart n2":              {2, "coterie restart --postgres n2"},
		"config show":             {2, "cat coterie.yaml in the node directory"},
		"config set x=1":          {2, "then coterie config check and coterie restart"},
		"failover --drain abc":    {2, `"abc" of "--drain" is not a duration: write a number with its unit, as in 500ms, 30s or 2m`},
		"failover --drain 10":     {2, "is not a duration"},
		"seed":                    {2, "needs"},
		"remove":                  {2, "coterie remove needs the member's name"},
		"resume":                  {2, "coterie resume needs the replica's name"},
		"join garbage":            {2, "this is not a whole join token"},
		"set":                     {2, "no node directory"},
		"set --required x":        {2, "is not a number"},
		"token create --ttl x":    {2, "is not a duration"},
		"init --group bad!":       {2, "letters, digits"},
	} {
		root := newRoot()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetIn(strings.NewReader(""))
		root.SetArgs(append([]string{"--node", none}, strings.Fields(typed)...))
		err := root.ExecuteContext(t.Context())
		if err == nil {
			t.Errorf("%s: no error", typed)
			continue
		}
		code := fail.KindOf(err).ExitCode()
		if other := (cli.ExitError{}); errors.As(err, &other) {
			code = other.Code
		}
		if code != want.code || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%s: exit code %d, %q; want %d, %q", typed, code, err, want.code, want.says)
		}
		for _, named := range regexp.MustCompile(`coterie ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?`).FindAllStringSubmatch(systemd.ReplaceAllString(err.Error(), ""), -1) {
			found, _, unknown := root.Find(named[1:2])
			if unknown != nil || found == root {
				t.Errorf("%s: %q names a command that does not exist", typed, err)
			} else if nouns := []string{"member", "replica", "database"}; slices.Contains(nouns, named[1]) && named[2] != "" {
				if sub, _, _ := root.Find(named[1:3]); sub == found {
					t.Errorf("%s: %q names a command that does not exist", typed, err)
				}
			}
		}
		for _, word := range []string{"strconv", "time: ", "dial unix", "context deadline", "rpc error", "Msg ", "%!"} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q has %q", typed, err, word)
			}
		}
	}
}

// TestNodeFromTheEnvironment holds that COTERIE_NODE names the node directory, and that --node has the last word.
func TestNodeFromTheEnvironment(t *testing.T) {
	t.Setenv("COTERIE_NODE", "/of/the/environment")
	for args, want := range map[string]string{"status": "/of/the/environment", "--node /of/the/flag status": "/of/the/flag"} {
		root := newRoot()
		root.SetArgs(strings.Fields(args))
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
