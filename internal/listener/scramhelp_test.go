package listener

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
)

// scramSecret returns what PostgreSQL would store of the password.
func scramSecret(password string, iterations int) string {
	salt := []byte("sixteen bytes ok")
	salted, _ := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	clientKey := scramHMAC(salted, []byte("Client Key"))
	stored := sha256.Sum256(clientKey)
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, b64(salt), b64(stored[:]), b64(scramHMAC(salted, []byte("Server Key"))))
}

// scramProof answers a server-first-message as a client that knows the password.
func scramProof(password, gs2, binding, bare, serverFirst string) string {
	fields := strings.Split(serverFirst, ",")
	salt, _ := base64.StdEncoding.DecodeString(fields[1][2:])
	var iterations int
	_, _ = fmt.Sscan(fields[2][2:], &iterations)
	salted, _ := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	clientKey := scramHMAC(salted, []byte("Client Key"))
	stored := sha256.Sum256(clientKey)
	without := "c=" + base64.StdEncoding.EncodeToString([]byte(gs2+binding)) + "," + fields[0]
	signature := scramHMAC(stored[:], []byte(bare+","+serverFirst+","+without))
	for i := range clientKey {
		clientKey[i] ^= signature[i]
	}
	return without + ",p=" + base64.StdEncoding.EncodeToString(clientKey)
}

func scramHMAC(key, data []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(data)
	return m.Sum(nil)
}
